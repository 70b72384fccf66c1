//! Links, addresses, routes and neighbours, by rtnetlink: all that this crate needs of it, so that nothing else depends on
//! how that library looks today.
//!
//! The kernel does each of these at once and answers, so there is nothing to wait for but its lock. That makes them
//! ordinary blocking calls, for a thread that stands in the namespace they are about.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType};
use nix::errno::Errno;
use rtnetlink::{Error, Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// One end of a pair of links.
pub(crate) struct End<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: Mac,
}

/// A conversation with the kernel about one namespace.
pub(crate) struct Links {
    handle: Handle,
}

/// Speaks about the namespace that the calling thread is in. Blocks; not for a thread that runs async code.
pub(crate) fn here<T>(work: impl AsyncFnOnce(&Links) -> io::Result<T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        work(&Links { handle }).await
    })
}

impl Links {
    /// Makes a pair of links, one end here, the other in `netns`.
    pub(crate) async fn add_veth(
        &self,
        here: End<'_>,
        there: End<'_>,
        netns: BorrowedFd<'_>,
        mtu: u16,
    ) -> io::Result<()> {
        let peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(there.name)
            .address(there.mac.to_vec())
            .mtu(mtu.into())
            .setns_by_fd(netns.as_raw_fd())
            .build();
        let pair = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(here.name)
            .address(here.mac.to_vec())
            .mtu(mtu.into())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)));
        self.handle.link().add(pair.build()).execute().await.map_err(from_kernel)
    }

    /// The number of the link that has this name.
    pub(crate) async fn index(&self, name: &str) -> io::Result<u32> {
        let found = self.handle.link().get().match_name(name).execute().try_next().await.map_err(from_kernel)?;
        Ok(found.ok_or(Errno::ENODEV)?.header.index)
    }

    /// The names of all pairs' ends that begin with `prefix`.
    pub(crate) async fn veths(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut links = self.handle.link().get().execute();
        let mut names = Vec::new();
        while let Some(link) = links.try_next().await.map_err(from_kernel)? {
            names.extend(veth_name(&link).filter(|name| name.starts_with(prefix)).map(str::to_owned));
        }
        Ok(names)
    }

    /// Takes a link away, and the other end of a pair with it. Fine if there is none.
    pub(crate) async fn delete(&self, name: &str) -> io::Result<()> {
        let gone = |error: &io::Error| error.raw_os_error() == Some(Errno::ENODEV as i32);
        let index = match self.index(name).await {
            Err(error) if gone(&error) => return Ok(()),
            index => index?,
        };
        match self.handle.link().del(index).execute().await.map_err(from_kernel) {
            Err(error) if gone(&error) => Ok(()),
            result => result,
        }
    }

    pub(crate) async fn set_up(&self, index: u32) -> io::Result<()> {
        let message = LinkUnspec::new_with_index(index).up().build();
        self.handle.link().set(message).execute().await.map_err(from_kernel)
    }

    /// Gives a link that is down its Ethernet address and its longest packet.
    pub(crate) async fn shape(&self, index: u32, mac: Mac, mtu: u16) -> io::Result<()> {
        let message = LinkUnspec::new_with_index(index).address(mac.to_vec()).mtu(mtu.into()).build();
        self.handle.link().set(message).execute().await.map_err(from_kernel)
    }

    /// Gives a link an address, which is there at once: nobody else can have it, so nobody is asked.
    pub(crate) async fn add_address(&self, index: u32, address: IpNet) -> io::Result<()> {
        let mut request = self.handle.address().add(index, address.addr(), address.prefix_len());
        request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        request.execute().await.map_err(from_kernel)
    }

    /// Routes what goes to `to` out by a link, to the neighbour `via` if there is one.
    pub(crate) async fn add_route(&self, index: u32, to: IpNet, via: Option<IpAddr>) -> io::Result<()> {
        let scope = if via.is_some() { RouteScope::Universe } else { RouteScope::Link };
        let route = RouteMessageBuilder::<IpAddr>::new().output_interface(index).scope(scope);
        let mut route = route.destination_prefix(to.addr(), to.prefix_len()).map_err(io::Error::other)?;
        if let Some(via) = via {
            route = route.gateway(via).map_err(io::Error::other)?;
        }
        self.handle.route().add(route.build()).execute().await.map_err(from_kernel)
    }

    /// Says for good which Ethernet address a neighbour has; one that was told before is forgotten.
    pub(crate) async fn set_neighbour(&self, index: u32, address: IpAddr, mac: Mac) -> io::Result<()> {
        let request = self.handle.neighbours().add(index, address).link_layer_address(&mac).replace();
        request.execute().await.map_err(from_kernel)
    }

    /// Whether what goes to no known network of IPv6 has a way.
    pub(crate) async fn has_default_route6(&self) -> io::Result<bool> {
        let mut routes = self.handle.route().get(RouteMessageBuilder::<Ipv6Addr>::new().build()).execute();
        while let Some(route) = routes.try_next().await.map_err(from_kernel)? {
            if is_default(&route) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The name of a link that is an end of a pair.
fn veth_name(link: &LinkMessage) -> Option<&str> {
    let veth = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::LinkInfo(info) if info.contains(&LinkInfo::Kind(InfoKind::Veth)));
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    });
    name.filter(|_| link.attributes.iter().any(veth))
}

/// The kernel has an unreachable default route for IPv6 where there is no other: that is none.
fn is_default(route: &RouteMessage) -> bool {
    let header = &route.header;
    header.address_family == AddressFamily::Inet6
        && header.destination_prefix_length == 0
        && header.kind == RouteType::Unicast
        && header.table == RouteHeader::RT_TABLE_MAIN
        && route.attributes.iter().any(|attribute| {
            matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Oif(_) | RouteAttribute::MultiPath(_))
        })
}

/// What the kernel answered, as any other system call's error.
fn from_kernel(error: Error) -> io::Error {
    match error {
        Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}
