import pyarrow as pa, pyarrow.parquet as pq, io, uuid, datetime as dt
from decimal import Decimal as D
from pyiceberg.expressions.literals import *
from pyiceberg.types import *
t=pa.table({"d":pa.array([-735498],pa.int32()).cast(pa.date32()),"s":["é"],"dec":pa.array([D("-1.10")],pa.decimal128(5,2)),"dec2":pa.array([D("-1.10")],pa.decimal128(30,2)),"ts":pa.array([10**17],pa.timestamp("us")),"u":pa.array([uuid.uuid4().bytes],pa.uuid()),"b":[True],"f":pa.array([-0.0],pa.float32()),"bi":[b"ab"], "t":pa.array([5],pa.time64("us"))})
b=io.BytesIO(); pq.write_table(t,b,store_decimal_as_integer=True,write_page_checksum=True)
m=pq.ParquetFile(b).metadata
for i in range(m.num_columns):
    s=m.row_group(0).column(i).statistics
    print(m.schema.column(i).path, m.schema.column(i).physical_type, s.has_min_max, repr(s.min_raw), repr(s.max_raw), s.null_count)
for l in (literal("1970-01-01T00:00:00"), literal(dt.datetime(2020,1,1)), literal("1970-01-01T00:00:00.123456789"), literal(dt.date(1,1,1)), literal("0001-01-01T00:00:00"), literal(5)):
    for ty in (TimestampNanoType(), TimestampType(), DateType(), TimestamptzType()):
        try: print(type(l).__name__, ty, l.to(ty))
        except Exception as e: print(type(l).__name__, ty, type(e), e)
