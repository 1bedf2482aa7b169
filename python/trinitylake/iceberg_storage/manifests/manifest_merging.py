"""Selection of the manifests that a snapshot merges.

Manifests are merged like the runs of a log-structured merge tree: `FAN_IN` manifests of about the same size become one.
So a scan of a table after n appends reads about FAN_IN/2 · log(n) manifests, and each entry is rewritten about log(n)
times. PyIceberg either never merges manifests, or rewrites all entries at each append.
`commit.manifest-merge.enabled`, `commit.manifest.min-count-to-merge` and `commit.manifest.target-size-bytes` of the
table override the defaults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pyiceberg.manifest import ManifestContent, ManifestFile

#: Number of manifests of about the same size that are merged into one.
FAN_IN = 10


def mergeable(manifests: Sequence[ManifestFile], fan_in: int, target_size_bytes: int) -> list[list[ManifestFile]]:
    """Groups of manifests to merge. The manifests of a group have the same content and partition spec.

    A manifest of level k lists at least `fan_in ** k` live files. A level with `fan_in` manifests is merged. If the
    result completes the next level, the manifests of that level belong to the same group. Manifests of at least half of
    the target size are not merged.
    """
    if len(manifests) < fan_in:
        return []
    by_kind: dict[tuple[int, ManifestContent], dict[int, list[ManifestFile]]] = defaultdict(lambda: defaultdict(list))
    for manifest in manifests:
        if manifest.manifest_length < target_size_bytes // 2:
            kind = manifest.partition_spec_id, manifest.content
            by_kind[kind][_level(_live_files(manifest), fan_in)].append(manifest)
    groups = []
    for levels in by_kind.values():
        group: list[ManifestFile] = []
        level = 0
        while level <= max(levels):
            members = levels.get(level, [])
            if len(members) + bool(group) >= fan_in:
                fitting = _fitting(group + members, target_size_bytes)
                if len(fitting) <= len(group):
                    break
                group = fitting
                level = max(level + 1, _level(sum(map(_live_files, group)), fan_in))
            elif group:
                break
            else:
                level += 1
        if len(group) > 1:
            groups.append(group)
    return groups


def _fitting(manifests: list[ManifestFile], target_size_bytes: int) -> list[ManifestFile]:
    """The longest prefix of `manifests` that fits into the target size."""
    size_bytes = 0
    for position, manifest in enumerate(manifests):
        size_bytes += manifest.manifest_length
        if size_bytes > target_size_bytes:
            return manifests[:position]
    return manifests


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _level(files: int, fan_in: int) -> int:
    level = 0
    while files >= fan_in:
        files //= fan_in
        level += 1
    return level
