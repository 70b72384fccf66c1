// Counts visits: each sandbox of the template begins with the count that the build left, which is 0.
const http = require("node:http");
const os = require("node:os");

let visits = 0;
const server = http.createServer((request, response) => {
    if (request.url === "/healthz") {
        response.end("ok\n");
        return;
    }
    visits += 1;
    response.setHeader("Content-Type", "text/plain; charset=utf-8");
    response.end(`Hello from ${os.hostname()}: visit ${visits}\n`);
});

// A preview reaches the loopback; no other address is needed.
server.listen(Number(process.env.PORT ?? 3000), "127.0.0.1");
