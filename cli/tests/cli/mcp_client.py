"""Calls tools of an MCP server with the official client, as an agent does, and prints what it gets: a JSON document a line.

mcp_client.py CALLS URL             over HTTP, with the API key in SANDPIPER_API_KEY
mcp_client.py CALLS COMMAND ARG...  over standard input and output of a command

CALLS is a JSON list of [tool, arguments]."""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


async def main(calls, target):
    if target[0].startswith("http"):
        headers = {"Authorization": "Bearer " + os.environ["SANDPIPER_API_KEY"]}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            await talk(calls, streamable_http_client(target[0], http_client=http))
    else:
        await talk(calls, StdioServerParameters(command=target[0], args=target[1:], env=dict(os.environ)))


async def talk(calls, server):
    async with Client(server) as client:
        tools = await client.list_tools()
        print(json.dumps({"tools": [tool.name for tool in tools.tools], "version": client.protocol_version}))
        for name, arguments in calls:
            messages = []

            async def on_progress(progress, total, message):
                messages.append(message)

            result = await client.call_tool(name, arguments, progress_callback=on_progress)
            text = "".join(block.text for block in result.content)
            print(json.dumps({"text": text, "is_error": bool(result.is_error), "progress": messages}))


asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2:]))
