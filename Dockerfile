# hopsum in a container: `docker build -t hopsum .`, then `docker run --rm hopsum run --workers 4`.
# Virtual time needs no privileges; Mininet and real interfaces need `docker run --privileged`.
FROM python:3.12-slim-bookworm

# Versions are those of the distribution's release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ethtool gcc git iproute2 iputils-ping libc6-dev make mininet \
    && rm -rf /var/lib/apt/lists/*

COPY . /hopsum
WORKDIR /hopsum
# The environment alone: packages of the system are there, tests and p4runtime-shell are not needed.
RUN make .venv/ready

ENV PATH=/hopsum/.venv/bin:$PATH
WORKDIR /work
ENTRYPOINT ["hopsum"]
CMD ["--help"]
