"""A second reader of the format, which shares no code with the first.

`name`, `node`, `definition`, `wire` and `lakehouse` are written from the original documents alone and know no
extension: a lakehouse that they refuse has changed the format. `extensions` checks what section 11 of docs/format.md
adds.
"""
