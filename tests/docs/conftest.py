"""Programs without their imports, one running server, and the files that documents take as given."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from PIL import Image

from tests.docs.fences import ROOT
from tests.docs.reader import Reader, Server, environment
from tests.fixtures.children import write_shims
from tests.fixtures.models import save_classifier, save_vit
from wattserve_common import dataset

LABELS = ("negative", "positive")
TEXTS = ("a very good film", "not a good film", "a bad film", "good", "very very bad", "a film")


@pytest.fixture(scope="session")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which commands of the documents run."""
    folder = tmp_path_factory.mktemp("variables")
    write_shims(folder / "bin")
    return environment(folder / "bin", folder / "cache")


@pytest.fixture(scope="session")
def server(variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The one that documents without a `wattserve serve` of their own speak to."""
    running = Server("wattserve serve --variants fp32,bf16,int8", tmp_path_factory.mktemp("run"), variables)
    running.wait_for_all()
    yield running
    running.end()


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has: a model, reviews, datasets, certificates."""
    folder = tmp_path_factory.mktemp("given")
    shutil.copytree(ROOT / "proto", folder / "proto", ignore=shutil.ignore_patterns("*.py*"))
    save_classifier(folder / "my-classifier")
    save_vit(folder / "my-image-classifier")
    normalised = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    (folder / "my-image-classifier" / "preprocessor_config.json").write_text(json.dumps(normalised))
    Image.new("RGB", (64, 48), "tan").save(folder / "photo.jpg")
    rows = [(TEXTS[number % len(TEXTS)], LABELS[number % 2]) for number in range(40)]
    with (folder / "reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    (folder / "reviews.txt").write_text("".join(f"{text}\n" for text, _ in rows))
    for name, count, start in (("train", 600, 0), ("test", 40, 600)):
        tokens = [[2, *_digits(start + number), 3] for number in range(count)]
        dataset.save(folder / "data" / name, tokens, [number % 2 for number in range(count)], {})
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, key in (("server", "server.key"), ("app", "app.key")):
        certificate = authority.issue_cert("localhost", "127.0.0.1", "models.example.org")
        for part in certificate.cert_chain_pems:
            part.write_to_path(folder / f"{name}.pem", append=True)
        certificate.private_key_pem.write_to_path(folder / key)
    return folder


@pytest.fixture
def reader(
    variables: dict[str, str], server: Server, given: Path, tmp_path: Path
) -> Iterator[Callable[[bool], Reader]]:
    """Makes a reader, in a folder with the given files or in an empty one."""
    made: list[Reader] = []

    def make(with_files: bool) -> Reader:
        folder = tmp_path / "here"
        if with_files:
            shutil.copytree(given, folder)
        else:
            folder.mkdir()
        made.append(Reader(folder, variables, server))
        return made[-1]

    yield make
    for each in made:
        each.leave()


def _digits(number: int) -> list[int]:
    """Token ids that no other number has."""
    return [4 + number // 36, 4 + number // 6 % 6, 4 + number % 6]
