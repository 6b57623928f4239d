"""What every room may use: errors, whole-or-nothing files, text for people, provenance. No torch.

Others use `errors`, `files`, `arrayfile` (safetensors with a JSON header), `extras`, `threads`
and `provenance`. This room imports no other.
"""
