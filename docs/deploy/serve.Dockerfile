# A server for programs, without torch. Build it in the root of the repository:
#   pip wheel --no-deps -w dist . && docker build -f docs/deploy/serve.Dockerfile -t anocaps .
FROM python:3.13-slim
COPY dist/anocaps-*.whl constraints.txt /tmp/
RUN wheel=$(ls /tmp/anocaps-*.whl) && \
    pip install --no-cache-dir -c /tmp/constraints.txt "$wheel[serve,runtime]" && \
    useradd --system anocaps && \
    install --directory --owner anocaps /project
USER anocaps
VOLUME /project
EXPOSE 8765
HEALTHCHECK CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8765/health')"]
CMD ["anocaps", "serve", "/project", "--no-browser", "--host", "0.0.0.0", \
     "--token-file", "/run/secrets/token", "--public-url", "http://localhost:8765"]
