"""The API is what was reviewed, and follows the style rules of proto/README.md.

    python tests/architecture/test_api_golden.py --refresh

writes the golden file anew after a wanted change.
"""

import difflib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest
from google.protobuf import descriptor_pb2, text_format

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
GOLDEN = ROOT / "tests/golden/api_v1.txtpb"
HINT = "After a wanted change: python tests/architecture/test_api_golden.py --refresh"
SERVICE_FIELD, METHOD_FIELD = 6, 2  # in FileDescriptorProto, in ServiceDescriptorProto


def compile_protos(root):
    """FileDescriptorSet of all .proto files under `root`, comments included, sorted by name. Those of gRPC are its own."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.proto") if path.parts[len(root.parts)] != "grpc")
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "set.pb"
        arguments = [f"-I{root}", "--include_source_info", f"--descriptor_set_out={output}", *names]
        protoc = shutil.which("protoc")
        command = [protoc] if protoc else [sys.executable, "-m", "grpc_tools.protoc"]
        subprocess.run([*command, *arguments], check=True, capture_output=True, text=True, timeout=60)
        files = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    files.file.sort(key=lambda file: file.name)
    return files


def bare(files):
    """The set without comments and derived JSON names, which differ between versions of protoc."""
    copy = descriptor_pb2.FileDescriptorSet()
    copy.CopyFrom(files)

    def strip(message):
        for field in message.field:
            field.ClearField("json_name")
        for nested in message.nested_type:
            strip(nested)

    for file in copy.file:
        file.ClearField("source_code_info")
        for message in file.message_type:
            strip(message)
    return copy


def as_text(files):
    return f"# Generated from proto/. {HINT}\n" + text_format.MessageToString(bare(files))


def snake(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)


def file_problems(file):
    folder = str(pathlib.PurePosixPath(file.name).parent)
    if folder.replace("/", ".") != file.package:
        yield f"package {file.package} lies in folder {folder}"
    if not re.search(r"\.v\d+$", file.package):
        yield f"package {file.package} has no version"
    if not re.fullmatch(r"[a-z0-9_]+\.proto", pathlib.PurePosixPath(file.name).name):
        yield "the file's name is not lower_snake_case"
    if file.syntax != "proto3":
        yield "it is not proto3"


def enum_problems(enum):
    prefix = snake(enum.name).upper() + "_"
    for value in enum.value:
        if not value.name.startswith(prefix):
            yield f"{enum.name}.{value.name} does not begin with {prefix}"
    if enum.value[0].number != 0 or enum.value[0].name != prefix + "UNSPECIFIED":
        yield f"{enum.name} does not begin with {prefix}UNSPECIFIED = 0"


def message_problems(message):
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", message.name):
        yield f"message {message.name} is not PascalCase"
    for field in list(message.field) + list(message.oneof_decl):
        if not re.fullmatch(r"_?[a-z][a-z0-9_]*", field.name):
            yield f"{message.name}.{field.name} is not lower_snake_case"
    for enum in message.enum_type:
        yield from enum_problems(enum)
    for nested in message.nested_type:
        if not nested.options.map_entry:
            yield from message_problems(nested)


def comments_of(file):
    return {tuple(place.path): place.leading_comments for place in file.source_code_info.location}


def service_problems(file, index, service):
    if not service.name.endswith("Service"):
        yield f"service {service.name} does not end in Service"
    comments = comments_of(file)
    if not comments.get((SERVICE_FIELD, index), "").strip():
        yield f"service {service.name} has no comment"
    for number, method in enumerate(service.method):
        where = f"{service.name}.{method.name}"
        for kind, given in (("Request", method.input_type), ("Response", method.output_type)):
            if given != f".{file.package}.{method.name}{kind}":
                yield f"{where} does not use {method.name}{kind} of its package"
        comment = comments.get((SERVICE_FIELD, index, METHOD_FIELD, number), "")
        for reason in sorted(reasons_in(comment) - known_reasons()):
            yield f"{where} names the reason {reason}, which reasons.h lacks"


def reasons_in(comment):
    return set(re.findall(r"\b[A-Z][A-Z_]{3,}\b", comment.partition("Reasons:")[2]))


def known_reasons():
    return set(re.findall(r'\[\] = "([A-Z_]+)"', (ROOT / "common/base/reasons.h").read_text(encoding="utf-8")))


def problems(files):
    found = []
    for file in files.file:
        parts = [file_problems(file)]
        parts += [enum_problems(enum) for enum in file.enum_type]
        parts += [message_problems(message) for message in file.message_type]
        parts += [service_problems(file, i, service) for i, service in enumerate(file.service)]
        found += [f"{file.name}: {problem}" for part in parts for problem in part]
    return found


@pytest.fixture(scope="module")
def api():
    return compile_protos(PROTO)


def test_the_api_is_what_was_reviewed(api):
    golden = text_format.Parse(GOLDEN.read_text(encoding="utf-8"), descriptor_pb2.FileDescriptorSet())
    now = bare(api)
    if golden != now:
        lines = difflib.unified_diff(text_format.MessageToString(golden).splitlines(),
                                     text_format.MessageToString(now).splitlines(), "golden", "now", lineterm="")
        pytest.fail("The API changed. " + HINT + "\n" + "\n".join(lines), pytrace=False)


def test_the_api_follows_the_style_rules(api):
    found = problems(api)
    assert not found, "\n".join(found)


GOOD = """syntax = "proto3";
package demo.v1;
// Serves.
service DemoService { rpc GetThing(GetThingRequest) returns (GetThingResponse); }
message GetThingRequest { string name = 1; }
message GetThingResponse { Kind kind = 1; }
enum Kind { KIND_UNSPECIFIED = 0; KIND_ROUND = 1; }
"""


def write_demo(folder, text):
    path = folder / "demo/v1/demo.proto"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return problems(compile_protos(folder))


def test_a_file_that_follows_the_rules_has_no_problems(tmp_path):
    assert write_demo(tmp_path, GOOD) == []


@pytest.mark.parametrize("old,new", [
    ("package demo.v1", "package other.v1"),
    ("// Serves.\n", ""),
    ("service DemoService", "service Demo"),
    ("returns (GetThingResponse)", "returns (GetThingRequest)"),
    ("string name", "string theName"),
    ("KIND_ROUND", "ROUND"),
    ("KIND_UNSPECIFIED", "KIND_NONE"),
    ("{ rpc", "{\n  // Reasons: NO_SUCH_REASON.\n  rpc"),
])
def test_a_file_that_breaks_a_rule_is_found(tmp_path, old, new):
    assert old in GOOD
    assert len(write_demo(tmp_path, GOOD.replace(old, new))) == 1


if __name__ == "__main__":
    if sys.argv[1:] != ["--refresh"]:
        sys.exit("usage: test_api_golden.py --refresh (pytest runs the tests)")
    GOLDEN.write_text(as_text(compile_protos(PROTO)), encoding="utf-8")
    print(f"wrote {GOLDEN.relative_to(ROOT)}")
