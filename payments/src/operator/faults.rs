//! What is wrong with what an operator says, as errors of the API.

use sandpiper_discovery::checks::{Fault, Faults};
use sandpiper_discovery::import::{Located, Refused};

use crate::error::{RpcError, Violation};

impl From<Faults> for RpcError {
    /// For things that came in a body or path, not in a file.
    fn from(faults: Faults) -> Self {
        let violation = |fault: Fault| Violation::new(fault.field, fault.problem);
        RpcError::invalid_fields(faults.listed.into_iter().map(violation).collect())
    }
}

impl From<Refused> for RpcError {
    fn from(refused: Refused) -> Self {
        let violation = |fault: Located| Violation {
            line: Some(fault.line),
            column: Some(fault.column),
            ..Violation::new(fault.field, fault.problem)
        };
        RpcError::invalid_file(refused.faults.into_iter().map(violation).collect(), refused.total)
    }
}
