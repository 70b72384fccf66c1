//! The migrations are embedded by a macro that cargo does not see into.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
