"""What a test may be skipped for: a server or a library that cannot be downloaded here."""


class UnreachableError(Exception):
    """No registry, repository or mirror responds, or the tool that asks it is not on PATH."""
