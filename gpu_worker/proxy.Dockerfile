# The gate's processes, a front, and a worker before a server that runs already (--engine openai): no GPU, no vLLM, no
# PyTorch. examples/compose and the stack (infra/server_workers.py) use it. The build context is the repository's root.
FROM python:3.13-slim
RUN useradd --uid 10001 --create-home headgate \
    && install -d -o headgate /files /var/lib/headgate
WORKDIR /opt/headgate
COPY pyproject.toml README.md LICENSE ./
COPY constraints/headgate.txt constraints/headgate.txt
COPY dispatcher dispatcher
COPY functions functions
COPY gpu_worker gpu_worker
COPY headgate headgate
COPY infra/__init__.py infra/__init__.py
RUN PIP_CONSTRAINT=constraints/headgate.txt PIP_BUILD_CONSTRAINT=constraints/headgate.txt \
    pip install --no-cache-dir '.[client]'
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER headgate
# A volume without a folder of its host begins as these folders are here: the user may write to it.
VOLUME /tmp /files /var/lib/headgate
