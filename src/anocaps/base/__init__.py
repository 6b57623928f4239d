"""Shared by every room: errors, atomic file writes, text for terminals, provenance. No torch.

Others use `errors`, `files`, `arrayfile` (safetensors with a JSON header), `signing`,
`extras`, `text`, `threads`, `rows` and `provenance`. This room imports no other.
"""
