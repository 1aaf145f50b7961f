"""Each command of deploy/languages.md makes the messages and the service that it says."""

import os
import re
import shutil
import subprocess

import pytest
from test_documents import PATIENCE, ROOT, blocks, read, section

# Language -> (its generator and the package that has it, the file of the messages, that of the service).
LANGUAGES = {
    "Go": ("protoc-gen-go-grpc", "protoc-gen-go protoc-gen-go-grpc", "ckptd/v1/types.pb.go", "ckptd/v1/checkpoint_service_grpc.pb.go"),
    "Java": ("grpc_java_plugin", "protobuf-compiler-grpc-java-plugin", "ckptd/v1/Types.java", "ckptd/v1/CheckpointServiceGrpc.java"),
    "Ruby": ("grpc_ruby_plugin", "protobuf-compiler-grpc", "ckptd/v1/types_pb.rb", "ckptd/v1/checkpoint_service_services_pb.rb"),
    "Python": ("grpc_python_plugin", "protobuf-compiler-grpc", "ckptd/v1/types_pb2.py", "ckptd/v1/checkpoint_service_pb2_grpc.py"),
    "C#": ("protoc", "protobuf-compiler", "Types.cs", "CheckpointService.cs"),
}


def test_the_document_has_these_languages():
    assert re.findall(r"^## (.*)$", read("deploy/languages.md"), flags=re.M) == [*LANGUAGES, "Descriptors"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_command_makes_messages_and_the_service(language, tmp_path):
    generator, package, messages, service = LANGUAGES[language]
    assert shutil.which(generator), f"there is no {generator}; run deploy/setup --tests, or apt-get install {package}"
    (command,) = blocks(section(read("deploy/languages.md"), language), "bash")
    done = subprocess.run(["bash", "-euc", command], cwd=ROOT, env={**os.environ, "OUT": str(tmp_path)}, capture_output=True,
                          text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "TensorTable" in (tmp_path / messages).read_text(encoding="utf-8").replace("_", "")
    text = (tmp_path / service).read_text(encoding="utf-8")
    assert "AcquireShard" in text and "WatchCheckpoint" in text
