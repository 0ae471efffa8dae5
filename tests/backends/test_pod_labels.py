"""Tags as labels of pods: whatever a tag is, Kubernetes takes its label, and what can stand in a label is found as written."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato.server.backends.kubernetes.labels import TAGS, tag_annotation, tag_labels

NAME = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)")
PREFIX = "tag.aviato.dev/"
TAG = st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=256)


@pytest.mark.parametrize(
    ("tag", "name", "value"),
    [
        ("eval", "eval", ""),
        ("run=7", "run", "7"),
        ("wandb-run:abc", "wandb-run", "abc"),
        ("a=b=c", "a", "b-c-9b87ba3c"),
        ("team:rl/blue", "team", "rl-blue-8a1a0a85"),
    ],
)
def test_a_tag_is_found_as_it_is_written(tag, name, value):
    found = tag_labels([tag])
    assert list(found) == [PREFIX + name]
    kept = found[PREFIX + name]
    assert kept == value or (kept.startswith(value[:-8]) and value[-9] == "-")


def test_tags_that_differ_have_labels_that_differ():
    assert tag_labels(["a=x/y"]) != tag_labels(["a=x y"]) != tag_labels(["a=x-y"])


def test_the_first_of_a_name_is_its_label():
    assert tag_labels(["a=1", "a=2"]) == {PREFIX + "a": "1"}


@given(st.lists(TAG, max_size=20))
def test_any_tags_are_labels_that_kubernetes_takes(tags):
    for name, value in tag_labels(tags).items():
        assert NAME.fullmatch(name.removeprefix(PREFIX))
        assert value == "" or NAME.fullmatch(value)


@given(st.lists(TAG, min_size=1, max_size=20))
def test_all_tags_stand_exactly_in_an_annotation(tags):
    assert json.loads(tag_annotation(tags)[TAGS]) == tags
