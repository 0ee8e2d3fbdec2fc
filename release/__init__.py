"""What `make release` does, apart from lint and tests: all but the upload."""
