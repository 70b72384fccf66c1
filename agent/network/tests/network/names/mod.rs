//! Names, from a guest's side: what the forwarder answers and where the proxy lets connections go, with real sockets in
//! namespaces of their own and servers that the tests make themselves.

mod dns;
mod http;
mod internet;
mod tls;
mod world;
