"""The files of `deploy/` name what exists. If this fails, a container does not start, or is never ready."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_serve import command

from engine.cli.discovery import FoundCommand, own_command
from engine.cli.main import make_parser

COMMANDS = [FoundCommand("serve", command), FoundCommand("doctor", own_command("doctor"))]
ROOT = Path(__file__).parents[3]
PATHS = {"/v2/health/live", "/v2/health/ready"}


def containers(name: str) -> Iterator[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    for document in yaml.safe_load_all((ROOT / "deploy" / name).read_text()):
        spec = document["spec"]
        yield from spec.get("containers", []) or spec.get("template", {}).get("spec", {}).get("containers", [])


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kserve.yaml"])
def test_the_manifests_start_and_probe_the_server(name: str) -> None:
    (container,) = containers(name)
    args = make_parser(COMMANDS).parse_args(["serve", *container["args"]])
    assert (args.repository, args.host) == ("/mnt/models", "0.0.0.0")
    assert args.no_loading, "whoever reaches the ports could load and unload models"
    assert args.port in [port["containerPort"] for port in container["ports"]]
    probes = [probe for key, probe in container.items() if key.endswith("Probe")]
    assert {probe["httpGet"]["path"] for probe in probes if "httpGet" in probe} == PATHS
    for probe in probes:
        if "exec" in probe:
            program, *arguments = probe["exec"]["command"]
            assert program == "engine"
            assert make_parser(COMMANDS).parse_args(arguments).json


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kserve.yaml"])
def test_the_pod_outlives_the_server(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    document = next(yaml.safe_load_all((ROOT / "deploy" / name).read_text()))
    pod = document["spec"].get("template", {}).get("spec", document["spec"])
    args = make_parser(COMMANDS).parse_args(["serve", *pod["containers"][0]["args"]])
    assert args.drain + args.grace < pod.get("terminationGracePeriodSeconds", 30)


def test_the_image_has_what_it_runs() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    found = {word: json.loads(rest) for word, rest in re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)}
    program, *arguments = [*found["ENTRYPOINT"], *found["CMD"]]
    assert program == "engine"
    args = make_parser(COMMANDS).parse_args(arguments)
    assert args.no_loading
    assert f"EXPOSE {args.port} {args.grpc_port}\n" in text
    (health,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.MULTILINE)
    assert make_parser(COMMANDS).parse_args(json.loads(health)[1:]).command == "doctor"
    (installed,) = re.findall(r"pip install (.*)$", text, re.MULTILINE)
    for each in shlex.split(installed):
        if each.startswith("./"):
            assert (ROOT / each.partition("[")[0] / "pyproject.toml").is_file()
