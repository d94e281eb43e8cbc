"""`make release REGISTRY=… VERSION=…`: build the images, push them and the chart, attach what describes them, sign."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from encoder_node import targets
from encoder_node.errors import NodeError
from encoder_release import build, release
from encoder_release.plan import ReleaseError, plan
from encoder_release.registry import Registry

FOLDER = targets.ROOT / "dist" / "release"


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Make the release that the environment describes; the Makefile sets it."""

    def value(name: str) -> str:
        return environment.get(name, "").strip()

    try:
        version = targets.project_version((targets.ROOT / "pyproject.toml").read_text())
        wanted = plan(value("REGISTRY"), value("VERSION") or version, version, targets.current(), value("ONLY"))
        source = release.checkout(value("SOURCE_URL"), value("BUILDER"))
        if source.changed and not wanted.on_this_machine:
            raise ReleaseError(
                "the checkout has uncommitted changes: commit them, or release to a registry on this machine"
            )
        # before minutes of building
        release.refuse_released(wanted, Registry(plain_http=wanted.on_this_machine))
        started = release.now()
        client = build.wheel(FOLDER)
        published = release.publish(
            wanted,
            build.build(wanted, FOLDER),
            source,
            started=started,
            maintainer=value("MAINTAINER"),
            key=value("KEY"),
        )
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    except NodeError as error:
        print(f"make release: {error.explain()}", file=sys.stderr)
        return 1
    (FOLDER / "release.json").write_text(release.summary(wanted, published, source))
    print(f"\n  helm install encoder-operator oci://{wanted.chart} --version {wanted.version}"
          " --namespace encoder-operator --create-namespace"
          + (" --plain-http" if wanted.on_this_machine else ""))  # fmt: skip
    print(f'  pip install "{client.relative_to(targets.ROOT)}[client]"')
    print(f"  digests: {(FOLDER / 'release.json').relative_to(targets.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
