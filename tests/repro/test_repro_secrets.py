"""Secrets are masked by form; lines of this field that only look like them stay."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from harness.repro.intake.masking import masked
from harness.repro.redact import SECRET, redactor_for
from launch.cli import cli

KEY = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("API_KEY=abc123def", "API_KEY=***"),
        ("password: correcthorse", "password: ***"),
        ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer ***"),
        ("https://u:p@host/path", "https://***@host/path"),
        ("--wandb-api-key deadbeef01", "--wandb-api-key ***"),
        ("docker login -u me -p hunter22 nvcr.io", "docker login -u me -p *** nvcr.io"),
        ("docker login -p hunter22", "docker login -p ***"),
        ("python login.py --port 3", "python login.py --port 3"),
        ("key_positions=tensor([0, 1])", "key_positions=tensor([0, 1])"),
        ("WANDB_API_KEY=0123456789abcdef", "WANDB_API_KEY=***"),
        ("Authorization: Basic dXNlcjpwdw", "Authorization: Basic ***"),
        ("https://u:p@ss/w@host/path", "https://***@host/path"),
        ('password = "two words", n=1', 'password = "***", n=1'),
        ("wandb_api_key ........ deadbeef01", "wandb_api_key ........ ***"),
        ("DB_PASS=ab,cdef x=1", "DB_PASS=*** x=1"),
        ("GET https://host/x?sig=abcdef&n=1", "GET https://host/x?sig=***&n=1"),
        ("key: torch.Size([4])", "key: torch.Size([4])"),
        ("total_tokens=131072", "total_tokens=131072"),
        ("calculate_per_token_loss=True", "calculate_per_token_loss=True"),
        ("dsa_indexer_topk=2048", "dsa_indexer_topk=2048"),
    ],
)
def test_masking(text, shown):
    assert masked(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"wandb login {KEY} && torchrun x.py", "wandb login *** && torchrun x.py"),
        (f"wandb login --relogin {KEY}", "wandb login --relogin ***"),
        (f'wandb.login(key="{KEY}")', 'wandb.login(key="***")'),
        ("login(relogin=True, token='abcdefgh')", "login(relogin=True, token='***')"),
        (f"wandb: (1) key {KEY}", "wandb: (1) key ***"),
        (
            f"wandb: Paste an API key: {KEY}",
            "wandb: Paste an API key: ***",
        ),
        (f"key='{KEY}'", "key='***'"),
        ("WANDBKEY=abc123", "WANDBKEY=***"),
        ("sshpass -p hunter2secret ssh node1", "sshpass -p *** ssh node1"),
        ("sshpass -phunter2secret ssh node1", "sshpass -p*** ssh node1"),
        ("sshpass -p 'two words' ssh node1", "sshpass -p '***' ssh node1"),
        ("SSHPASS=hunter2 sshpass -e ssh node1", "SSHPASS=*** sshpass -e ssh node1"),
        ("mysql -u root -pPW runs", "mysql -u root -p*** runs"),
        ("docker login --password-stdin <<< hunter2", "docker login --password-stdin <<< ***"),
        ("docker login --password-stdin <<< 'a b'", "docker login --password-stdin <<< '***'"),
        (
            "echo hunter2 | docker login -u me --password-stdin nvcr.io",
            "echo *** | docker login -u me --password-stdin nvcr.io",
        ),
        ("docker login -p 'two words' nvcr.io", "docker login -p '***' nvcr.io"),
        ("API key is abc123def456", "API key is ***"),
        ("API key: abc123", "API key: ***"),
        ("secret key = abcdef", "secret key = ***"),
        ("bad token 'abcdef123456'", "bad token '***'"),
        ("pass: hunter2", "pass: ***"),
        ('"pass": "hunter 22"', '"pass": "***"'),
        ("user: me pass: correcthorse", "user: me pass: ***"),
        ("db_pass=hunter", "db_pass=***"),
        ("pw=hunter2 n=1", "pw=*** n=1"),
    ],
)
def test_masking_of_commands_and_prose(text, shown):
    assert masked(text) == shown


@pytest.mark.parametrize(
    "token",
    [
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "ya29.a0AfH6SMBxabcdef",
        "npm_abcdefghijklmnopqrstuvwxyz0123456789",
        "pypi-AgEIcHlwaS5vcmcCJDAwMDAw",
        "ASIAIOSFODNN7EXAMPLE",
        "AKIAIOSFODNN7EXAMPLE",
        "dckr_pat_abcdefghij-klmnop",
        "hvs.CAESIabcdefghij",
        "xapp-1-A012345-678-abcdef",
        "xoxb-123456789012-abcdef",
        "glrt-abcdefghij0123456789",
        "glpat-abcdefghij0123456789",
        "sk_live_abcdefghij0123456789",
        "SG.abcdefghij0123456789ab.abcdefghij0123456789",
        "hf_abcdefghijklmnop",
        "ghp_abcdefghijklmnop",
        "nvapi-abcdefghijklmnop",
    ],
)
def test_tokens_of_known_services_are_masked_wherever_they_stand(token):
    for text in ("({})", "x {} y", "'{}'", "RuntimeError: {}", "at {}, then"):
        assert masked(text.format(token)) == text.format("***")
    assert redactor_for().text(f"cannot use {token}") == f"cannot use {SECRET}"


@pytest.mark.parametrize(
    "text",
    [
        "forward pass: 12.3 ms",
        "backward pass: 12.3ms",
        "forward pass: dsa_sparse_bwd2",
        "pass 1 of 2",
        "pass: layer12",
        "pass: True",
        "pass: 10, fail: 2",
        "pass_rate: 0.98, passes: 3",
        "compass: 3",
        "bypass: enabled1",
        "key=tensor([0, 1], dtype=torch.int32)",
        "key: torch.Size([4])",
        "key: attn.q_proj",
        "key 3 of 4 has no row",
        "the API key is not set",
        "special token '<|endoftext|>'",
        "special token 'reserved_special_token_0'",
        "token '4096' of the row",
        "topk=2048 tokens: 131072",
        "pw=3 pw=0.5",
        "NUM_KEYS=4 MAXKEYS=16",
        f"Megatron-LM commit: {KEY}",
        f"wandb: git commit {KEY}",
        "npm_lifecycle_event SG.sparse_kernel sk-learn AIza pypi-server",
        "mysql -h db -P3306 -u root",
        "echo step 1 | tee log",
        "cat <<< hello",
        "docker login --password-stdin nvcr.io",
        "pretrain_gpt.py -p 1 --pipeline-model-parallel-size 2",
    ],
)
def test_lines_of_this_field_stay(text):
    assert masked(text) == text


@pytest.mark.parametrize(
    "text",
    [
        f"wandb login {KEY} && torchrun x.py --dsa-indexer-topk 1024",
        "sshpass -p hunter2secret ssh node1 torchrun x.py --context-parallel-size 4",
        f'RuntimeError: CUDA error: misaligned address (wandb.login(key="{KEY}"), '
        "AIzaSyA1234567890abcdefghijklmnopqrstuv)",
    ],
)
def test_secrets_beside_a_fact_are_in_no_file(tmp_path, text):
    path, out = tmp_path / "sent.txt", tmp_path / "out"
    path.write_text(text + "\n")
    done = CliRunner().invoke(cli, ["intake", str(path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    texts = [done.output, *(one.read_text() for one in out.iterdir())]
    for secret in (KEY, "hunter2", "AIza"):
        assert not any(secret in one for one in texts)
    assert "sent.txt" in done.output


HOSTILE = (
    "wandb " * 660,
    "wandb login " * 330,
    "wandb login" + " --a" * 990,
    "sshpass " * 500 + "-",
    "mysql " * 660 + "-",
    "token '" * 570,
    "user " * 800,
    "key " * 1000,
    "key" + "." * 3990,
    "echo " * 800 + "|",
    "echo a |" * 500,
    "passw" * 800 + "<<",
    "login(" * 660,
    "pass: " * 660,
    "pass:" + "a" * 3990,
    "pypi-" * 800,
    "SG." * 1300,
    "A" * 4000,
    "0123456789abcdef" * 250,
    "API key is " * 360,
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_are_masked_in_linear_time(text):
    """Patterns that backtrack would not come to an end within the time limit of a test."""
    for _ in range(20):
        masked(text)
