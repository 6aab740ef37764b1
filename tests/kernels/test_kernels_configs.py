from pathlib import Path

import pytest
import yaml

from harness.kernels import RELEASES, modelled_namespace

FILES = sorted((Path(__file__).parents[2] / "configs" / "kernels").glob("*.yaml"))


def load(path):
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_preset_builds_a_namespace(path):
    namespace = modelled_namespace(**load(path))
    assert namespace.release is RELEASES[load(path)["cudnn_frontend"]]


def test_presets_are_what_their_names_say():
    presets = {path.stem: load(path) for path in FILES}
    newest = list(RELEASES)[-1]
    assert presets["newest"]["cudnn_frontend"] == newest
    assert presets["contract"] == {**presets["newest"], "defects": "none"}
    bottom_right = [v for v, r in RELEASES.items() if r.mask_alignment == "bottom_right"]
    assert presets["last_bottom_right"]["cudnn_frontend"] == bottom_right[-1]
