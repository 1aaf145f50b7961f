"""What the documents say is what the code does."""

import contextlib
import os
import pathlib
import re
import subprocess
import tempfile

import pytest
import test_includes

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")).resolve() / "bin"
README = ROOT / "README.md"
API = ROOT / "proto/README.md"
EXAMPLE = ROOT / "deploy/config/ckptd.example.toml"
PATIENCE = 60
CODES = {"CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
         "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
         "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
                            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).is_file()]


def section(text, title):
    """The part of a Markdown text under one heading."""
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S).group(1)


def rows(text):
    """Cells of the rows of the tables in a Markdown text, heads and rulers left out."""
    lines = [line.strip() for line in text.splitlines()]
    table = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    rulers = [i for i, cells in enumerate(table) if all(set(cell.strip()) <= set("-:") for cell in cells)]
    skipped = set(rulers) | {i - 1 for i in rulers}
    return [[cell.strip() for cell in cells] for i, cells in enumerate(table) if i not in skipped]


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def screaming(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


@pytest.fixture(scope="module")
def daemon_binary():
    path = BINARIES / "ckptd"
    if not path.exists():
        # tests/run says where the binaries are; they must be there then.
        (pytest.fail if "CKPTD_BUILD_DIR" in os.environ else pytest.skip)(
            f"there is no {path}; run deploy/setup --build first")
    return path


# --- reasons -----------------------------------------------------------------

def reasons_of_code():
    return dict(re.findall(r'char (k\w+)\[\] = "(\w+)";', read("common/base/reasons.h")))


def reasons_of_table():
    table = {}
    for name, codes, advice in rows(section(API.read_text(encoding="utf-8"), "Reasons")):
        table[name.strip("`")] = (set(re.findall(r"\b[A-Z][A-Z_]+\b", codes)), advice)
    return table


def test_the_python_package_s_own_reasons_are_in_its_readme():
    used = set()
    for path in tracked("client/python/src/ckptd/*.py", "client/python/src/ckptd/torch/*.py"):
        used |= set(re.findall(r'^\s+"([A-Z]+_[A-Z_]+)",$', read(path), re.MULTILINE))
    own = used - set(reasons_of_code().values()) - CODES
    listed = set(re.findall(r"^\| `([A-Z_]+)` \|", read("client/python/README.md"), re.MULTILINE))
    assert len(own) > 5 and own <= listed, own - listed


def test_the_table_of_reasons_is_complete_and_has_no_others():
    assert set(reasons_of_table()) == set(reasons_of_code().values())


def test_the_runbook_has_what_to_look_at_and_the_next_step_for_each_reason():
    entries = rows(section(read("deploy/README.md"), "Errors"))
    assert [name.strip("`") for name, _, _ in entries] == list(reasons_of_code().values())
    assert all(look and step for _, look, step in entries)


def test_the_go_client_names_the_reasons_of_the_table():
    assert set(re.findall(r'^\tReason\w+ += "(\w+)"$', read("client/go/reasons.go"), flags=re.M)) == set(reasons_of_table())


def test_each_reason_has_canonical_codes_and_advice():
    wrong = [reason for reason, (codes, advice) in reasons_of_table().items()
             if not codes or not codes <= CODES or not advice]
    assert not wrong


def test_each_code_that_a_reason_is_made_with_is_in_the_table():
    table, names, missing = reasons_of_table(), reasons_of_code(), set()
    for path in tracked("common/*.cc", "server/*.cc", "server/*.h", "client/*.cc"):
        for code, reason in re.findall(r"StatusCode::k(\w+),\s*reason::(k\w+)", read(path)):
            if screaming(code) not in table[names[reason]][0]:
                missing.add(f"{path}: {names[reason]} with {screaming(code)}")
    assert not missing, "\n".join(sorted(missing))


# --- settings ----------------------------------------------------------------

def settings_of(binary, *arguments):
    """Key -> value as `ckptd config` prints them, in an environment that says nothing."""
    environment = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": "/run"}
    done = subprocess.run([binary, *arguments, "config"], env=environment, capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(re.findall(r'^([\w-]+) = "(.*)"$', done.stdout, flags=re.M))


def live(text):
    """The example with its settings no longer commented out."""
    return re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.M)


def test_the_example_names_every_setting_with_its_default(daemon_binary):
    written = re.findall(r'^# ([a-z-]+) = "?([^"\n]*)"?$', EXAMPLE.read_text(encoding="utf-8"), flags=re.M)
    assert sorted(written) == sorted(settings_of(daemon_binary).items())


def test_the_example_as_it_is_changes_nothing(daemon_binary):
    assert settings_of(daemon_binary, "--config", EXAMPLE) == settings_of(daemon_binary)


def test_the_example_is_accepted_with_all_its_settings_in_use(daemon_binary, tmp_path):
    text = live(EXAMPLE.read_text(encoding="utf-8"))
    config = tmp_path / "ckptd.toml"
    config.write_text(text.replace('job = "default"', 'job = "another"'), encoding="utf-8")
    assert settings_of(daemon_binary, "--config", config) == {**settings_of(daemon_binary), "job": "another"}


# --- README and its like -----------------------------------------------------

def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 180


def folders_of_readme():
    return [cells[0].strip("`") for cells in rows(section(README.read_text(encoding="utf-8"), "Folders"))]


def test_every_folder_of_the_readme_exists():
    folders = folders_of_readme()
    assert folders
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_every_top_folder_is_in_the_readme():
    named = {folder.split("/")[0] for folder in folders_of_readme()}
    tops = {path.split("/")[0] for path in tracked() if "/" in path and not path.startswith(".")}
    assert sorted(tops - named) == []


@pytest.mark.parametrize("path", tracked("*.md"))
def test_shell_blocks_are_valid(path):
    for block in blocks(read(path), "bash"):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", tracked("*.md"))
def test_python_blocks_are_valid(path):
    for number, block in enumerate(blocks(read(path), "python")):
        compile(block, f"{path}, block {number}", "exec")


@pytest.mark.parametrize("path", tracked("*.md"))
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", read(path))
    dead = [target for target in targets
            if not target.startswith("http") and not (ROOT / path).parent.joinpath(target).exists()]
    assert dead == []


def test_commands_of_the_readme_exist_and_can_be_run():
    commands = set(re.findall(r"\./[\w/]+", README.read_text(encoding="utf-8")))
    assert commands
    assert [command for command in commands if not os.access(ROOT / command, os.X_OK)] == []


def test_every_verb_of_ckptctl_is_in_the_readme():
    # The golden help is compared with the program's own by unit_cli.
    verbs = section(read("tests/golden/cli/help-ckptctl.txt").replace("\nSubcommands:", "\n## Subcommands")
                    .replace("\nThe daemon is found", "\n## The daemon is found"), "Subcommands")
    text = section(README.read_text(encoding="utf-8"), "ckptctl")
    names = re.findall(r"^  ([a-z-]+)  ", verbs, flags=re.M)
    assert names
    assert [name for name in names if f"`{name}`" not in text and f"ckptctl {name}" not in text] == []


def test_the_exit_codes_of_its_readme_are_those_of_ckptctl():
    coded = set(re.findall(r"kExit\w+ = (\d+);", read("client/cli/exit_codes.h")))
    assert {cells[0] for cells in rows(section(read("client/cli/README.md"), "Exit codes"))} == coded


def test_the_include_table_names_every_folder_that_the_law_knows():
    folders = {name for name in test_includes.ALLOWED if name.startswith("server/")}
    written = {cells[0].strip("`/") for cells in rows(section(read("server/README.md"), "Who includes whom"))}
    assert written == folders


STATUS = re.compile(r"Status: (?:accepted(?:, amended by (?P<amended>\d{4}(?:, \d{4})*))?|superseded by (?P<superseded>\d{4}))"
                    r" · \d{4}-\d{2}-\d{2}")


def wrong_status(text, number, numbers):
    """What is wrong with a decision's status line, or None."""
    lines = text.splitlines()
    status = STATUS.fullmatch(lines[2]) if len(lines) > 2 and not lines[1] else None
    if not status:
        return "the line under the title is no status with a date"
    later = (status["amended"] or status["superseded"] or "").split(", ")
    return next((f"{other} is no later decision" for other in later if other and (other not in numbers or other <= number)),
                None)


@pytest.mark.parametrize("path", tracked("deploy/decisions/*.md"))
def test_a_decision_says_its_status_and_date_and_names_decisions_that_exist(path):
    numbers = {pathlib.Path(other).name[:4] for other in tracked("deploy/decisions/*.md")}
    assert wrong_status(read(path), pathlib.Path(path).name[:4], numbers) is None


@pytest.mark.parametrize("line", ["", "Status: accepted", "Status: draft · 2026-11-21", "Status: superseded by 0001 · 2026-11-21",
                                  "Status: superseded by 0003 · 2026-11-21", "Status: accepted, amended by 0003 · 2026-11-21",
                                  "Status: accepted · 21 November"])
def test_a_wrong_status_line_is_found(line):
    assert wrong_status(f"# 1. Title\n\n{line}\n", "0001", {"0001", "0002"})


@pytest.mark.parametrize("line", ["Status: accepted · 2026-11-21", "Status: superseded by 0002 · 2026-11-21",
                                  "Status: accepted, amended by 0002, 0003 · 2026-11-21"])
def test_a_right_status_line_is_accepted(line):
    assert wrong_status(f"# 1. Title\n\n{line}\n", "0001", {"0001", "0002", "0003"}) is None


@pytest.mark.parametrize("path", tracked("deploy/decisions/*.md"))
def test_a_decision_is_short_and_has_its_three_parts(path):
    text = read(path)
    assert re.fullmatch(r"deploy/decisions/\d{4}-[a-z0-9-]+\.md", path)
    assert len(text.splitlines()) <= 60
    # A specification lies beside its code; the decision says in a few lines where.
    if re.search(r"^The specification is \[", text, flags=re.M):
        assert len(text.splitlines()) <= 15 and "## " not in text
        return
    assert re.findall(r"^## (.*)$", text, flags=re.M) == ["Context", "Decision", "Consequences"]


def test_decisions_are_numbered_without_gaps():
    numbers = sorted(int(pathlib.Path(path).name[:4]) for path in tracked("deploy/decisions/*.md"))
    assert numbers and numbers == list(range(1, len(numbers) + 1))


def test_no_file_has_unfinished_marks_or_paths_of_one_machine():
    # Spelled apart, so that this file is not found by itself.
    marks = re.compile("|".join([r"\b" + "TO" + r"DO\b", r"\b" + "FIX" + r"ME\b", r"(?<![\w.)}])/" + "work/",
                                 "/tmp/" + r"w\b"]))
    found = []
    for path in tracked():
        for number, line in enumerate((ROOT / path).read_bytes().decode("utf-8", "ignore").splitlines(), 1):
            if marks.search(line):
                found.append(f"{path}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


# --- the descriptor protocol -------------------------------------------------

@contextlib.contextmanager
def daemon(binary, folder):
    """A single daemon without arena; its sockets lie in folder/default."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    arguments = ["run", "--run-dir", folder, "--rendezvous", "127.0.0.1:0", "--segment-bytes", "2MiB"]
    process = subprocess.Popen([binary, *arguments], env=environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    try:
        yield pathlib.Path(folder) / "default"
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def load_and_acquire(address, source):
    from ckptd import _client, _proto
    with _client.connect(address, PATIENCE) as client:
        checkpoint = client.load(source, layout="replicate:1")
        # The public call would use the token itself.
        return client._call("AcquireShard", _proto.message("AcquireShardRequest")(name=checkpoint.name), "acquiring")


@pytest.fixture
def acquired(daemon_binary, tmp_path, monkeypatch):
    """(AcquireShardResponse, name -> bytes of each tensor) of a shard of several segments."""
    monkeypatch.syspath_prepend(str(ROOT / "client/python/src"))
    import numpy
    import safetensors.numpy
    tensors = {"a": numpy.arange(300_000, dtype=numpy.int64), "b": numpy.ones((3, 5), numpy.float32),
               "c": numpy.arange(400_000, dtype=numpy.int64)}
    source = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, source)
    # Unix socket paths are short: tmp_path would not fit.
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder, daemon(daemon_binary, folder) as sockets:
        reply = load_and_acquire(str(sockets / "rank-0.sock"), source)
        yield reply, {name: array.tobytes() for name, array in tensors.items()}


def test_the_example_of_the_descriptor_protocol_receives_the_tensors(acquired):
    reply, expected = acquired
    scope = {}
    exec(blocks(API.read_text(encoding="utf-8"), "python")[0], scope)  # our own text
    connection, maps = scope["attach"](reply.memfd.fd_socket, reply.token, list(reply.memfd.segment_bytes))
    slab = b"".join(part[:] for part in maps)
    table = reply.tensors
    found = {name: slab[offset:offset + size]
             for name, offset, size in zip(table.names, table.offsets, table.bytes)}
    connection.close()
    assert len(maps) > 1
    assert found == expected


def test_the_example_of_the_descriptor_protocol_shows_the_daemons_refusal(acquired):
    reply, _ = acquired
    scope = {}
    exec(blocks(API.read_text(encoding="utf-8"), "python")[0], scope)  # our own text
    with pytest.raises(RuntimeError, match="token"):
        scope["attach"](reply.memfd.fd_socket, "0" * len(reply.token), list(reply.memfd.segment_bytes))
