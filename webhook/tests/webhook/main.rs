//! Signatures from outside: what a verifier accepts, case by case and for inputs of any kind.

mod properties;
mod reference;
mod verifier;
