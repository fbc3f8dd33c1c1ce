# Wattserve's server. Two targets, alike but for torch:
#   cpu    the default
#   cuda   torch's CUDA wheels bring CUDA's libraries along and the host's NVIDIA runtime adds the driver, so that
#          it needs no CUDA base image: both targets stand on the same Debian
# deploy/image/build.sh builds them; docs/how-to/docker.md says how to run them.

# Any Debian or Ubuntu with Python 3.11 or later among its packages.
ARG BASE=docker.io/library/debian:bookworm-slim
FROM ${BASE} AS python
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log

# What installs, and stays behind. /opt/venv gets no pip of its own.
FROM python AS tools
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/tools \
 && python3 -m venv --without-pip /opt/venv
# As a variable, since a build's own environment (hatchling's) does not see pip's -c.
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY constraints.txt ./

# The requirements alone, so that an edited source file costs no download of torch.
FROM tools AS requirements
COPY pyproject.toml ./
RUN python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; e = p["optional-dependencies"]; \
print(*p["dependencies"], *e["server"], *e["postgres"][1:], *e["openai"][1:], sep="\n")' > /requirements.txt

# The index that has torch's CPU wheels; empty: the one pip is configured for. Nothing but torch comes from it.
# The secret is for a mirror: `--secret id=pip.conf,src=FILE`, which leaves no trace in the image.
FROM tools AS dependencies-cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY --from=requirements /requirements.txt /requirements.txt
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/tools/bin/pip --python /opt/venv/bin/python install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
 && /opt/tools/bin/pip --python /opt/venv/bin/python install -r /requirements.txt \
 && /opt/venv/bin/python -c 'import torch; v = torch.version.cuda; v is None or exit(f"the cpu target got torch for CUDA {v}")'

# On x86-64 PyPI's torch is a CUDA build. For another CUDA: https://download.pytorch.org/whl/cu126, say.
FROM tools AS dependencies-cuda
ARG TORCH_CUDA_INDEX=
COPY --from=requirements /requirements.txt /requirements.txt
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/tools/bin/pip --python /opt/venv/bin/python install --no-deps ${TORCH_CUDA_INDEX:+--index-url "$TORCH_CUDA_INDEX"} torch \
 && /opt/tools/bin/pip --python /opt/venv/bin/python install -r /requirements.txt \
 && /opt/venv/bin/python -c 'import torch; torch.version.cuda or exit(f"the cuda target got torch {torch.__version__}")'

# Wattserve itself, without what it needs: a few megabytes that change often, above a layer that seldom does.
FROM tools AS application
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY proto proto
COPY common common
COPY client client
COPY server server
COPY loadgen loadgen
COPY tools tools
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/tools/bin/pip --python /opt/venv/bin/python install --no-deps --root /application .

FROM python AS runtime
RUN groupadd --gid 10001 wattserve \
 && useradd --uid 10001 --gid 10001 --home-dir /cache --no-create-home --shell /usr/sbin/nologin wattserve \
 && install -d -o 10001 -g 10001 /cache
# All that is written goes to the volume, so that the root file system can be read-only (and /tmp a tmpfs).
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/cache \
    HF_HOME=/cache/huggingface \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
VOLUME /cache
EXPOSE 50051 9464
COPY --chmod=0644 deploy/image/healthcheck.py /opt/healthcheck.py
# The first start downloads, warms up and calibrates. Every check starts a Python, which
# costs joules too: hence no more than two a minute.
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m --retries=3 CMD ["python", "/opt/healthcheck.py"]
USER 10001:10001
# Exec form: the server is process 1, and SIGTERM drains it. --host, since a container's own loopback cannot be
# reached from outside it; --insecure, since without certificates it could not start so: publish on 127.0.0.1.
ENTRYPOINT ["wattserve"]
CMD ["serve", "--host", "0.0.0.0", "--insecure"]
ARG BASE
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="wattserve" \
      org.opencontainers.image.description="A gRPC inference server that tells every request what it cost in joules" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"

FROM runtime AS cuda
# compute: CUDA; utility: NVML, which the energy meter reads.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=dependencies-cuda /opt/venv /opt/venv
COPY --from=application /application/opt/venv /opt/venv

FROM runtime AS cpu
COPY --from=dependencies-cpu /opt/venv /opt/venv
COPY --from=application /application/opt/venv /opt/venv
