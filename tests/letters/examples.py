"""All examples of the letter specification."""

from __future__ import annotations

import json
from typing import Any

COMPLETE = """
{
  "type": "task_result",
  "protocol_version": "1.0",
  "sender_id": "CA",
  "recipient_id": "ARCH",
  "timestamp": "2025-05-21T20:00:00Z",
  "task_id": "TASK-070C",
  "retry_count": 0,
  "trace_id": "abc123",
  "payload": {
    "status": "success",
    "result": {
      "output": "Deployment completed successfully",
      "artifacts": [
        {
          "type": "file",
          "path": "/deployments/deploy-20250521/output.log",
          "description": "Deployment log"
        }
      ]
    }
  },
  "context": {
    "deployment_id": "dep-12345",
    "environment": "staging"
  }
}
"""

_BASIC = """
{
  "status": "success",
  "result": {
    "output": "Task completed successfully",
    "artifacts": [
      {
        "type": "file",
        "path": "/output/result.json",
        "description": "Generated output file"
      }
    ]
  },
  "metrics": {
    "duration_ms": 1234,
    "memory_usage_mb": 256
  }
}
"""

_EVALUATED = """
{
  "status": "success",
  "success": true,
  "score": 0.95,
  "duration_sec": 12.34,
  "notes": "Task completed with high accuracy",
  "result": {
    "output": "Analysis completed with 95% confidence",
    "artifacts": [
      {
        "type": "report",
        "path": "/reports/analysis-20250521.pdf",
        "description": "Detailed analysis report"
      }
    ]
  },
  "metrics": {
    "duration_ms": 12340,
    "memory_usage_mb": 342
  }
}
"""

_ERROR = """
{
  "code": "VALIDATION_ERROR",
  "message": "Invalid input format",
  "details": {
    "field": "input_data",
    "issue": "Expected string, got number"
  },
  "retryable": true,
  "suggested_actions": ["validate_input", "retry"]
}
"""

_NEEDS_INPUT = """
{
  "requested_inputs": [
    {
      "id": "api_key",
      "type": "string",
      "description": "API key for the external service",
      "sensitive": true
    },
    {
      "id": "preference",
      "type": "enum",
      "options": ["option1", "option2"],
      "description": "Select preferred approach"
    }
  ],
  "context": "Configuring the deployment pipeline"
}
"""

PAYLOADS: dict[str, tuple[str, str]] = {
    "basic": ("task_result", _BASIC),
    "evaluated": ("task_result", _EVALUATED),
    "error": ("error", _ERROR),
    "needs_input": ("needs_input", _NEEDS_INPUT),
}


def example_letter(name: str) -> dict[str, Any]:
    """Return an example as a complete letter. A payload gets the envelope of the ``complete`` example."""
    letter: dict[str, Any] = json.loads(COMPLETE)
    if name != "complete":
        letter["type"], payload = PAYLOADS[name]
        letter["payload"] = json.loads(payload)
    return letter


EXAMPLES = {name: example_letter(name) for name in ("complete", *PAYLOADS)}
