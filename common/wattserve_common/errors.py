"""Errors of a user's data, for the server, loadgen and the tools alike."""

from __future__ import annotations


class UserError(Exception):
    """Base of every error that is the user's to repair. Its message is one line that says what to do."""


class DatasetError(UserError):
    """A dataset, or a file to make one from, cannot be used; names the file and the row."""
