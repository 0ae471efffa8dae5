"""Uses of images, beside what the store does with them."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from aviato.server.images.image_uses import BEGINNING_SECONDS, ImageUses


@pytest.fixture
def places(tmp_path: Path) -> Path:
    (tmp_path / "server" / "sandboxes").mkdir(parents=True)
    return tmp_path / "server" / "sandboxes"


def begun_before(uses: ImageUses, tmp_path: Path, seconds: float) -> None:
    """Have all uses of "image" begun so long ago."""
    directory = tmp_path / "store" / "uses" / "image"
    for name in os.listdir(directory):
        sandbox_id, since = name.split("@")
        (directory / name).rename(directory / f"{sandbox_id}@{int(since) - int(seconds)}")


def test_a_use_takes_no_file_of_its_own(tmp_path: Path, places: Path) -> None:
    uses = ImageUses(tmp_path / "store")
    for number in range(5):
        uses.add("image", f"sb-{number}", str(places))
    inodes = {one.lstat().st_ino for one in (tmp_path / "store" / "uses" / "image").iterdir()}
    assert len(inodes) == 1 and uses.alive("image") == [f"sb-{number}" for number in range(5)]


def test_after_a_while_it_counts_only_with_its_place(tmp_path: Path, places: Path) -> None:
    uses = ImageUses(tmp_path / "store")
    for name in ("sb-there", "sb-gone"):
        uses.add("image", name, str(places))
    (places / "sb-there").mkdir()
    begun_before(uses, tmp_path, BEGINNING_SECONDS + 1)
    before = uses.used_at("image")
    assert uses.alive("image") == ["sb-there"]
    uses.tidy("image")
    assert len(os.listdir(tmp_path / "store" / "uses" / "image")) == 1 and uses.used_at("image") == before


def test_who_begins_anew_counts_anew(tmp_path: Path, places: Path) -> None:
    uses = ImageUses(tmp_path / "store")
    uses.add("image", "sb-1", str(places))
    begun_before(uses, tmp_path, BEGINNING_SECONDS + 1)
    assert uses.alive("image") == []
    uses.add("image", "sb-1", str(places))
    assert uses.alive("image") == ["sb-1"]


def test_another_process_sees_it_by_another_path(tmp_path: Path, places: Path) -> None:
    """As where a volume is mounted elsewhere: what holds a store holds its servers' places."""
    (places / "sb-1").mkdir()
    ImageUses(tmp_path / "store").add("image", "sb-1", str(places))
    (tmp_path / "elsewhere").mkdir()
    for name in ("store", "server"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    begun_before(other := ImageUses(tmp_path / "elsewhere" / "store"), tmp_path / "elsewhere", BEGINNING_SECONDS + 1)
    assert other.alive("image") == ["sb-1"]


def test_one_of_an_earlier_version_counts(tmp_path: Path, places: Path) -> None:
    """It is a link to the place."""
    uses, directory = ImageUses(tmp_path / "store"), tmp_path / "store" / "uses" / "image"
    directory.mkdir(parents=True)
    (places / "sb-there").mkdir()
    for name in ("sb-there", "sb-begins", "sb-gone"):
        (directory / name).symlink_to(places / name)
    old = time.time() - BEGINNING_SECONDS - 1
    for name in ("sb-there", "sb-gone"):
        os.utime(directory / name, (old, old), follow_symlinks=False)
    assert uses.alive("image") == ["sb-begins", "sb-there"]
    uses.tidy("image")
    assert sorted(os.listdir(directory)) == ["sb-begins", "sb-there"]


@pytest.mark.parametrize(("most", "number"), [(0, errno.EPERM), (3, errno.EMLINK)], ids=["no disk for names", "too many names"])
def test_where_there_is_no_other_name_it_is_a_link(
    tmp_path: Path, places: Path, monkeypatch: pytest.MonkeyPatch, most: int, number: int
) -> None:
    uses = ImageUses(tmp_path / "store")
    linking = os.link

    def limited(link: str, name: str, *, follow_symlinks: bool) -> None:
        if os.lstat(link).st_nlink > most:
            raise OSError(number, os.strerror(number), link)
        linking(link, name, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "link", limited)
    names = [f"sb-{number}" for number in range(6)]
    for name in (*names, names[0]):
        uses.add("image", name, str(places))
        (places / name).mkdir(exist_ok=True)
    begun_before(uses, tmp_path, BEGINNING_SECONDS + 1)
    assert uses.alive("image") == names


def test_links_to_places_that_have_gone_go(tmp_path: Path, places: Path) -> None:
    gone = tmp_path / "another" / "sandboxes"
    gone.mkdir(parents=True)
    uses = ImageUses(tmp_path / "store")
    uses.add("image", "sb-1", str(gone))
    gone.rmdir()
    uses.add("image", "sb-2", str(places))
    assert len(os.listdir(tmp_path / "store" / "places")) == 1
    gone.mkdir()
    uses.add("image", "sb-3", str(gone))
    assert uses.alive("image") == ["sb-1", "sb-2", "sb-3"]
