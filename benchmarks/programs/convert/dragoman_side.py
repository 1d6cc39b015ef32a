"""Convert a request of OpenAI's chat API to Anthropic's."""

from pathlib import Path

from dragoman import dialects

request = dialects.load("openai_chat").read_request(Path("request.json").read_bytes())
print(dialects.load("anthropic").write_request(request).wire)
