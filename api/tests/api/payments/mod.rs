//! `/merchant` and `/operator`: discovery, payments, and what operators bring in.

mod authorization;
mod command;
mod discovery;
mod document;
mod envelope;
mod import;
mod merchant_keys;
mod merchants;
mod portal;
mod reading;
mod reporting;
