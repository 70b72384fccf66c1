//! What the processor lacks that guests run without, but slower or with less.
//!
//! Whether they run at all is the [`Rung`](super::Rung)'s to say, so nothing here is a failure.

use std::fs;
use std::path::Path;

use kvm_ioctls::{Cap, Kvm};

use super::checks::Check;

const NAME: &str = "processor";

pub(super) fn checks() -> Vec<Check> {
    judge(&Processor::read(Path::new("/sys/module"), Kvm::new().ok().as_ref()))
}

/// What KVM uses of the processor. `None` where it does not tell, or where there is no such thing to use.
#[derive(Debug, PartialEq, Eq)]
struct Processor {
    /// XCR0 and the register state that it switches on, AVX first of all.
    xsave: Option<bool>,
    paging: Option<NestedPaging>,
    /// Whether a guest's real mode runs on the processor. AMD's always does.
    unrestricted_guest: Option<bool>,
}

/// Page tables of the host's under the guest's own.
#[derive(Debug, PartialEq, Eq)]
struct NestedPaging {
    module: &'static str,
    parameter: &'static str,
    is_on: bool,
}

impl Processor {
    /// Asks KVM, and its modules' parameters, which say what is used of what the processor has. `modules` is
    /// `/sys/module`.
    fn read(modules: &Path, kvm: Option<&Kvm>) -> Self {
        let parameter =
            |module, parameter| match fs::read_to_string(modules.join(module).join("parameters").join(parameter))
                .ok()?
                .trim()
            {
                "Y" | "1" => Some(true),
                "N" | "0" => Some(false),
                _ => None,
            };
        let paging = [("kvm_intel", "ept"), ("kvm_amd", "npt")]
            .into_iter()
            .find_map(|(module, name)| Some(NestedPaging { module, parameter: name, is_on: parameter(module, name)? }));
        Self {
            xsave: kvm.map(|kvm| kvm.check_extension(Cap::Xcrs)),
            paging,
            unrestricted_guest: parameter("kvm_intel", "unrestricted_guest"),
        }
    }
}

fn judge(processor: &Processor) -> Vec<Check> {
    let mut lacks = Vec::new();
    let mut has_nested_paging = true;
    if let Some(NestedPaging { module, parameter, is_on: false }) = processor.paging {
        has_nested_paging = false;
        lacks.push(Check::warn(
            NAME,
            format!(
                "no nested page tables ({parameter}): KVM shadows each guest's own, so starting processes and mapping memory is slower in guests"
            ),
            format!(
                "load {module} with {parameter}=1; where this is a virtual machine, have its hypervisor pass {} on",
                parameter.to_uppercase()
            ),
        ));
    }
    // It takes nested page tables: without those, that is what to mend.
    if processor.unrestricted_guest == Some(false) && has_nested_paging {
        lacks.push(Check::warn(
            NAME,
            "no unrestricted guests: KVM emulates real mode, in which every vCPU of a guest but the first starts, so guests with several start a little slower",
            "load kvm_intel with unrestricted_guest=1; a processor from before 2010 does not have it",
        ));
    }
    if processor.xsave == Some(false) {
        lacks.push(Check::warn(
            NAME,
            "no XSAVE: guests have no AVX, which some programs do not start without, and snapshots from hosts that have it are refused here",
            "start the host's kernel without noxsave; where this is a virtual machine, give it a newer CPU model; a processor from before 2011 does not have it",
        ));
    }
    if lacks.is_empty() {
        lacks.push(Check::ok(NAME, "KVM misses nothing that makes guests slower"));
    }
    lacks
}

#[cfg(test)]
mod tests {
    use super::super::checks::Verdict;
    use super::*;

    /// What is read where KVM's module `name` has these parameters.
    fn read(name: &str, parameters: &[(&str, &str)]) -> Processor {
        let modules = tempfile::tempdir().unwrap();
        let folder = modules.path().join(name).join("parameters");
        fs::create_dir_all(&folder).unwrap();
        for (parameter, value) in parameters {
            fs::write(folder.join(parameter), value).unwrap();
        }
        Processor::read(modules.path(), None)
    }

    /// The beginnings of what is found to lack.
    fn lacks(processor: &Processor) -> Vec<String> {
        let warned = judge(processor).into_iter().filter(|check| check.verdict == Verdict::Warn);
        warned.map(|check| check.found.split(':').next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn modules_say_what_they_use() {
        let ept = |is_on| Some(NestedPaging { module: "kvm_intel", parameter: "ept", is_on });
        let intel = read("kvm_intel", &[("ept", "Y\n"), ("unrestricted_guest", "N\n")]);
        assert_eq!(intel, Processor { xsave: None, paging: ept(true), unrestricted_guest: Some(false) });
        let npt = Some(NestedPaging { module: "kvm_amd", parameter: "npt", is_on: false });
        assert_eq!(
            read("kvm_amd", &[("npt", "0\n")]),
            Processor { xsave: None, paging: npt, unrestricted_guest: None }
        );
        let other = Processor { xsave: None, paging: None, unrestricted_guest: None };
        assert_eq!(read("kvm_pvm", &[]), other);
        assert_eq!(read("kvm_intel", &[("ept", "?")]), other);
    }

    #[test]
    fn what_is_missing_is_told_with_its_cause_only() {
        let complete =
            Processor { xsave: Some(true), ..read("kvm_intel", &[("ept", "Y"), ("unrestricted_guest", "Y")]) };
        assert_eq!(lacks(&complete), Vec::<String>::new());
        assert_eq!(judge(&complete)[0].verdict, Verdict::Ok);
        let shadowing = read("kvm_intel", &[("ept", "N"), ("unrestricted_guest", "N")]);
        assert_eq!(lacks(&shadowing), ["no nested page tables (ept)"]);
        let old = Processor { xsave: Some(false), ..read("kvm_intel", &[("ept", "Y"), ("unrestricted_guest", "N")]) };
        assert_eq!(lacks(&old), ["no unrestricted guests", "no XSAVE"]);
        assert_eq!(lacks(&read("kvm_amd", &[("npt", "0")])), ["no nested page tables (npt)"]);
    }
}
