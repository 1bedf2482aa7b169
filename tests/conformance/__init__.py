"""A second reader of the format, which shares no code with the library.

`name`, `node`, `definition`, `wire` and `lakehouse` are written from the original documents alone and know no
extensions. A lakehouse that they refuse does not follow the original format. `extensions` checks the extensions of
docs/format.md, section 11.
"""
