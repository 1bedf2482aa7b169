"""Manifests and manifest lists: reading them, writing them, and the snapshots that consist of them.

`snapshot_producer` makes a snapshot from added and removed files. `manifest_file` and `manifest_list` read and write
one file each, `avro_file` writes Avro, `avro_size` limits the memory that reading may take, and
`manifest_merging` selects the manifests that an append merges.
"""
