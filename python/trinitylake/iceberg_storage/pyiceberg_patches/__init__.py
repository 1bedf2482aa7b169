"""Changes to PyIceberg for the whole process, and its private functions under public names.

- `avro_decoding`: doubles in Avro files are decoded with 64 bits, nanoseconds as numbers (apache/iceberg-python,
  `avro/decoder_fast.pyx`, `utils/schema_conversion.py`).
- `nanosecond_defaults`: default values of `timestamp_ns` (apache/iceberg-python, `conversions.py`).
- `partition_types`: a partition field whose source column was dropped may have the name of another column
  (apache/iceberg-python, `partitioning.py`, `validate_partition_name`).
- `variant`: the type `variant` of format version 3 (apache/iceberg-python, `types.py`).
- `functions`: private functions (listed in `extended_pyiceberg`).
"""
