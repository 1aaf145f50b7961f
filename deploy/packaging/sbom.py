"""Bills of materials: CycloneDX 1.6 as JSON, the same bytes for the same components."""

import datetime
import json
import pathlib
import uuid
from typing import Iterable

import dpkg
from cyclonedx.model import ExternalReference, ExternalReferenceType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

BILLS = uuid.UUID("6f0c8e8a-3d0b-5c39-9b1d-0d7b3f5a7c41")  # the name space of their serial numbers


def ckptd(name: str, version: str, kind: ComponentType) -> Component:
    """What a bill is about."""
    licence = LicenseExpression("Apache-2.0")
    return Component(
        name=name, version=version, type=kind, bom_ref=f"{name}@{version}", licenses=[licence]
    )


def of_package(package: dpkg.Package) -> Component:
    """Scanners look packages up by the source package, which is the URL's `upstream`. The licence is named from where
    the bill lies: share/doc/ckptd/."""
    distribution = dpkg.distribution()
    url = PackageURL(
        type="deb",
        namespace=distribution.partition("-")[0],
        name=package.name,
        version=package.version,
        qualifiers={
            "arch": package.architecture,
            "distro": distribution,
            "upstream": f"{package.source}@{package.source_version}",
        },
    )
    licence = ExternalReference(
        type=ExternalReferenceType.LICENSE, url=XsUri(f"../{package.name}/copyright")
    )
    site = ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(package.homepage))
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(url),
        purl=url,
        external_references=[licence, site] if package.homepage else [licence],
    )


def of_toolkit(version: str) -> Component:
    """The CUDA toolkit, whose headers are compiled into kernels. It is no Debian package."""
    licence = DisjunctiveLicense(name="NVIDIA CUDA Toolkit EULA")
    return Component(
        name="cuda-toolkit",
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"cuda-toolkit@{version}",
        licenses=[licence],
    )


def bill(subject: Component, parts: Iterable[Component], commit: str, epoch: int) -> str:
    """JSON. `epoch`: when the commit was made, in seconds."""
    made = Bom(
        components=parts, serial_number=uuid.uuid5(BILLS, f"{subject.bom_ref.value} of {commit}")
    )
    made.metadata.component = subject
    made.metadata.timestamp = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    made.register_dependency(subject, made.components)
    return JsonV1Dot6(made).output_as_string(indent=2) + "\n"


def read(path: pathlib.Path) -> Bom:
    """A bill that was written before."""
    return Bom.from_json(json.loads(path.read_text()))
