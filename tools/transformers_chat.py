"""What transformers makes of a conversation."""

import datetime

from transformers.utils import chat_template_utils


def render(template, conversation, now):
    """(text, None), or (None, the error)."""

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.fromtimestamp(now, tz)

    chat_template_utils.datetime = Clock
    # As apply_chat_template() does before it renders.
    messages = [{key: value for key, value in message.items() if value is not None}
                for message in conversation["messages"]]
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [messages], tools=conversation.get("tools"), documents=conversation.get("documents"),
            chat_template=template, add_generation_prompt=conversation["add_generation_prompt"],
            **conversation["special"], **conversation.get("variables", {}))
        return texts[0], None
    except Exception as error:  # templates raise whatever they like
        return None, f"{type(error).__name__}: {error}"[:200]
