"""Tests of predictions: with fewer trees."""

from fakes.few_trees import few_trees as few_trees
