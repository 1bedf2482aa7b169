"""Manifests and manifest lists: reading them, writing them, and the snapshots that consist of them.

`snapshot_producer` makes a snapshot from added and removed files, and selects the manifests that it merges.
`manifest_file` and `manifest_list` read and write one file each, `avro_file` writes Avro and limits the memory that
reading may take.
"""
