"""Convert a request of OpenAI's chat API to Anthropic's."""

import json
from pathlib import Path

from litellm import AnthropicConfig

request = json.loads(Path("request.json").read_text())
options = {"max_tokens": request["max_tokens"]}
print(AnthropicConfig().transform_request(request["model"], request["messages"], options, {}, {}))
