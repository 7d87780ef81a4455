"""The one error that is the user's to mend: every command prints it as one line and ends with exit code 2."""


class InputError(ValueError):
    """Say in one line what is wrong, what would be right, and what to do."""
