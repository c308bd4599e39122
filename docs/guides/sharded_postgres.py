"""Ask several PostgreSQL servers as one: a coordinator with postgres_fdw, in front of indexes that aleator made.

python sharded_postgres.py NAME COORDINATOR_URL SHARD_URL SHARD_URL ...

Each shard has an index of this name (`postgresql://...#NAME`), and all servers have pgvector. The coordinator gets the
schema `sharded_NAME` with a foreign table for each shard and the function `credible(query, bound, most)`. The guide
"Sharded PostgreSQL" explains it.
"""

import sys
import zlib

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

_SERVER = """
CREATE SERVER {server} FOREIGN DATA WRAPPER postgres_fdw
OPTIONS (extensions 'vector', async_capable 'true', fetch_size '1000', {place})
"""
_TABLE = """
CREATE FOREIGN TABLE {table} (
    seq bigint NOT NULL, key text COLLATE "C" NOT NULL, kappa real NOT NULL, note text NOT NULL, mu vector NOT NULL
) SERVER {server} OPTIONS (schema_name {schema}, table_name 'items')
"""
# Each branch is one foreign table, so that its condition, its order and its limit are all sent to the shard.
_BRANCH = """
(SELECT {number} AS shard, key, kappa, note, mu <#> query AS distance FROM {table}
 WHERE mu <#> query <= bound ORDER BY mu <#> query LIMIT most)
"""
# `distance + 0`: by `distance` alone, PostgreSQL would merge the ordered branches, and ask one shard after the other.
_FUNCTION = """
CREATE FUNCTION {function} (query vector, bound float8, most bigint DEFAULT NULL)
RETURNS TABLE (shard int, key text, kappa real, note text, distance float8) LANGUAGE sql STABLE
AS $$ SELECT * FROM ({branches}) AS found ORDER BY distance + 0 LIMIT most $$
"""


def shard_of(key: str, shards: int) -> int:
    """The shard that an item belongs to, from its id. It never changes, so the id is unique over all shards."""
    return zlib.crc32(key.encode()) % shards


def connect_shards(name: str, coordinator: str, shards: list[str]) -> None:
    """Make the schema `sharded_NAME` on the coordinator, in one transaction."""
    here, remote = f"sharded_{name}", f"aleator_{name}"
    with psycopg.connect(coordinator) as connection:
        for extension in ("vector", "postgres_fdw"):
            connection.execute(f"CREATE EXTENSION IF NOT EXISTS {extension}")
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(here)))
        branches = []
        for number, url in enumerate(shards):
            server, table = sql.Identifier(f"{here}_{number}"), sql.Identifier(here, f"items_{number}")
            place = conninfo_to_dict(url)
            user = {key: place.pop(key) for key in ("user", "password") if key in place}
            connection.execute(sql.SQL(_SERVER).format(server=server, place=_options(place)))
            mapping = sql.SQL("CREATE USER MAPPING FOR CURRENT_USER SERVER {} OPTIONS ({})")
            connection.execute(mapping.format(server, _options(user)))
            connection.execute(sql.SQL(_TABLE).format(table=table, server=server, schema=sql.Literal(remote)))
            branches.append(sql.SQL(_BRANCH).format(number=sql.Literal(number), table=table))
        together = sql.SQL("UNION ALL").join(branches)
        connection.execute(sql.SQL(_FUNCTION).format(function=sql.Identifier(here, "credible"), branches=together))


def _options(values: dict) -> sql.Composable:
    pairs = (sql.SQL("{} {}").format(sql.Identifier(key), sql.Literal(str(value))) for key, value in values.items())
    return sql.SQL(", ").join(pairs)


if __name__ == "__main__":
    connect_shards(sys.argv[1], sys.argv[2], sys.argv[3:])
