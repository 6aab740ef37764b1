#!/bin/bash
# Self-test of a plain copy of this tree where only torch, triton and numpy are installed and nothing
# can be downloaded. The wheels that docs/first-gpu.md lists lie in $WHEELS; what was found goes to $OUT.
set -u; shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
wheels=${WHEELS:-wheels} out=${OUT:-first-gpu} limit=${LIMIT_S:-450} python=${PYTHON:-python3}
mkdir -p "$out"
site=$(mktemp -d) && trap 'rm -rf "$site"' EXIT
for wheel in "$wheels"/*.whl; do
  # A wheel is an archive of what belongs on the path; no installer is needed.
  "$python" -m zipfile -e "$wheel" "$site" 2>/dev/null || { echo "cannot read $wheel" >&2; exit 2; }
done
export PYTHONPATH="$site:$site/nvidia_cutlass_dsl/dsl_packages:$PWD${PYTHONPATH:+:$PYTHONPATH}"
for name in click pydantic yaml rich jinja2 packaging megatron; do
  "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$name') is None)" ||
    { echo "missing wheel: $name (see docs/first-gpu.md)" >&2; exit 2; }
done
timeout --kill-after=10 "$limit" "$python" -u -m launch.cli selftest --hardware \
  --json "$out/selftest.json" 2>&1 | tee "$out/selftest.txt"
code=${PIPESTATUS[0]}
[ "$code" = 124 ] && echo "stopped after $limit s; the gates that ended stand in $out" | tee -a "$out/selftest.txt"
"$python" -m launch.cli doctor >"$out/doctor.txt" 2>&1
echo "exit code $code (0 passed, 1 a gate failed, 5 no usable GPU, 124 out of time); send back $out"
exit "$code"
