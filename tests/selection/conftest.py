"""Tests of selections: with fewer trees."""

from fakes.few_trees import few_trees as few_trees
