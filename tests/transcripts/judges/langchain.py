def validate(wire):
    from langchain_core.messages import messages_from_dict

    return len(messages_from_dict(wire))
