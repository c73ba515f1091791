"""Shortened chat templates of model families, with their peculiarities: the place of images, and errors."""

QWEN = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

QWEN3 = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

QWEN_VISION = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

GEMMA2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{{ message.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

GEMMA3 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set first = (messages[0].content if messages[0].content is string else messages[0].content[0].text) + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n{{ first if loop.first else '' }}"
    "{% if message.content is string %}{{ message.content | trim }}{% else %}{% for part in message.content %}"
    "{{ '<start_of_image>' if part.type == 'image' else part.text | trim }}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'user' %}[INST] {{ message.content }}[/INST]"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)

COHERE = (
    "{{ bos_token }}{% for message in messages %}<|START_OF_TURN_TOKEN|>"
    "{{ {'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>', 'system': '<|SYSTEM_TOKEN|>'}[message.role] }}"
    "{{ message.content | trim }}<|END_OF_TURN_TOKEN|>"
    "{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)

# A message whose content is a plain string loses it: only parts are rendered.
IDEFICS = (
    "<|im_start|>{% for message in messages %}{{ message.role | capitalize }}"
    "{{ ':' if message.content[0].type == 'image' else ': ' }}"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% elif part.type == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)

# The images of a turn come before its text, wherever they are among its parts.
LLAVA_NEXT = (
    "{% for message in messages %}{% if message.role == 'system' %}<<SYS>>\n{{ message.content[0].text }}\n<</SYS>>\n\n"
    "{% elif message.role == 'user' %}[INST] "
    "{% for part in message.content | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %} [/INST]"
    "{% else %} {{ message.content[0].text }}</s>{% endif %}{% endfor %}"
)

LLAVA_ONEVISION = (
    "{% for message in messages %}<|im_start|>{{ message.role }} "
    "{% for part in message.content | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'video') %}<video>\n{% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

INTERNVL = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<IMG_CONTEXT>\n{% elif part.type == 'video' %}<video>\n"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

PALIGEMMA = (
    "{% for message in messages %}{% for part in message.content | selectattr('type', 'equalto', 'image') %}<image>"
    "{% endfor %}{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}"
    "{% endfor %}"
)
