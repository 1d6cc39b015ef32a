"""Ask two models the same question, and print what each of them cost."""

from dragoman import Agent

with Agent("chats.db") as agent:
    for model in ("claude-sonnet-5-5", "gpt-5"):
        answer = agent.ask("What is a dragoman?", model=model)
        usage = answer.usage
        print(f"{answer.model}: {usage.input_tokens} + {usage.output_tokens} tokens, ${answer.cost}")
    for total in agent.wait_for(agent.store.costs.totals("day")):
        print(f"{total.group}: {total.messages} answers, ${total.cost_usd}")
