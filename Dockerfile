# One image for every actor; docker-compose.yml names the command.
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY requirements.lock pyproject.toml ./
RUN pip install --no-cache-dir uv && uv pip install --system --require-hashes -r requirements.lock
COPY actors actors
COPY bus bus
COPY configs configs
COPY core core
COPY runners runners
COPY README.md ./
ARG EXTRAS=""
RUN uv pip install --system --no-deps -e . && if [ -n "$EXTRAS" ]; then uv pip install --system ".[$EXTRAS]"; fi
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["kernelmill"]
