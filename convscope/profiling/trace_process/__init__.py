"""Tracing of passes in a process of its own, with a model of its own: CUPTI never starts where times are taken."""
