//! The host's table, filled in.

use ipnet::IpNet;

use crate::config::Config;
use crate::plan::Plan;

const TEMPLATE: &str = include_str!("host.nft");

/// The ruleset for all slots that there can be, and for those of an earlier process up to the number `highest`.
pub(super) fn ruleset(config: &Config, highest: u32) -> String {
    let last = config.max_slots.max(highest).min(u16::MAX.into());
    let plans: Vec<Plan> = (1..=last).filter_map(|number| Plan::of(config, number)).collect();
    let list = |element: &dyn Fn(&Plan) -> String| plans.iter().map(element).collect::<Vec<_>>().join(", ");
    let protected = config.platform().protected_nets();
    let nets = |of: fn(&IpNet) -> bool| {
        let nets: Vec<_> = protected.iter().filter(|net| of(net)).map(ToString::to_string).collect();
        // A set may be empty, but not a list of elements.
        if nets.is_empty() { String::new() } else { format!("elements = {{ {} }};", nets.join(", ")) }
    };
    let is_ipv4 = |net: &IpNet| net.addr().is_ipv4();
    let is_ipv6 = |net: &IpNet| net.addr().is_ipv6();
    TEMPLATE
        .replace("{name}", &config.name)
        .replace("{links}", &list(&|plan| format!("\"{}\"", plan.link)))
        .replace("{sources4}", &list(&|plan| format!("\"{}\" . {}", plan.link, plan.slot.address)))
        .replace("{sources6}", &list(&|plan| format!("\"{}\" . {}", plan.link, plan.slot.address6)))
        .replace("{marks}", &list(&|plan| format!("\"{}\" : {:#x}", plan.link, plan.mark())))
        .replace("{protected4}", &nets(is_ipv4))
        .replace("{protected6}", &nets(is_ipv6))
        .replace("{transit4}", &config.transit.to_string())
        .replace("{transit6}", &config.transit6.to_string())
}
