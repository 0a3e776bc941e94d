# SPDX-License-Identifier: Apache-2.0
# The CPU image: `docker build -t sluice .`, then `docker run -p 8000:8000 sluice` serves the demo model;
# `docker run -p 8000:8000 -v /models:/models:ro sluice serve /models/NAME --host 0.0.0.0` serves
# another model, and `docker run -p 8000:8000 -v models:/cache sluice serve ORG/NAME --host 0.0.0.0`
# serves a model by name, which is downloaded once. The contents come from `make install`. Debian's
# libmicrohttpd is older than recommended behind a load balancer, so a newer one is built from the
# sources of Debian unstable (scripts/deps) and linked statically.
FROM debian:12-slim AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc make pkg-config libc6-dev libuv1-dev libcjson-dev \
    libpcre2-dev libutf8proc-dev libgnutls28-dev libcurl4-gnutls-dev libedit-dev libsqlite3-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY scripts/deps scripts/deps
RUN apt-get update && scripts/deps --fetch /tmp/sources && scripts/deps /tmp/sources/libmicrohttpd_*.orig.tar.gz && \
    rm -rf /var/lib/apt/lists/* /tmp/sources
COPY . .
RUN make -j"$(nproc)" CUDA=0 CURL=1 SQLITE=1 BUILD=build/image MHD=build/deps install DESTDIR=/image PREFIX=/usr && \
    strip --strip-unneeded /image/usr/bin/sluice

FROM debian:12-slim
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libuv1 libcjson1 libpcre2-8-0 libutf8proc2 libgnutls30 \
    libcurl3-gnutls libedit2 libsqlite3-0 ca-certificates && rm -rf /var/lib/apt/lists/* && useradd --uid 8000 --no-create-home --shell /usr/sbin/nologin sluice && \
    install -d -o sluice -g sluice /cache
# Cache for models by name: a volume, so that they are downloaded once.
ENV HF_HOME=/cache
COPY --from=build /image /
USER 8000
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=10m --start-interval=1s \
    CMD ["sluice", "health", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["sluice"]
CMD ["serve", "/usr/share/sluice/models/demo", "--host", "0.0.0.0"]
